"""What AWS's engines share: programs as text that an old torch reads, a compiler in an interpreter of its own."""

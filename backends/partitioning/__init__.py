"""An engine and the CPU together: which operators stay with which, and one program from outside."""

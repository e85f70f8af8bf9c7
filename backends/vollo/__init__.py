"""What the engine Vollo is made of: our programs as modules that its compiler takes, its virtual machine, streams."""

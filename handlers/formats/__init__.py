"""Request and response formats: bytes of a body to input tensors, output tensors to bytes."""

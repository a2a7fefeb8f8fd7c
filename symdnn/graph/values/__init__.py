"""What values live in: storages, strides, borrowed and foreign arrays; which of them are faulty."""

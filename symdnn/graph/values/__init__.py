"""Where values are stored: storages, strides, borrowed and foreign arrays, and checks of them."""

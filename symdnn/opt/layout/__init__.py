"""The choice of layouts, NCHW or NHWC, for the whole graph at once."""

"""Every calibrator's probabilities, beside those of other packages."""

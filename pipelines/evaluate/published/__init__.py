"""Published figures: files of figures kept from runs, the results page, and the check of expected figures."""

"""The page at `/`: plain HTML, CSS and JavaScript, and the few routes that only it needs."""

"""The web page at `/`: plain HTML, CSS and JavaScript, and the routes that only the page uses."""

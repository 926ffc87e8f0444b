"""The HTTP application: routes, guard, keys."""

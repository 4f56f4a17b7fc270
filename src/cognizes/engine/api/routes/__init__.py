"""The routes, a module for each part."""

"""Small programs that stand in for the service's neighbours in tests."""

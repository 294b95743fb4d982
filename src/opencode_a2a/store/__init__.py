"""The task log and its tables, on SQLAlchemy Core: one implementation for every database."""

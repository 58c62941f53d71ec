"""How a data root says where its log is."""

VARIABLE = "AVA_DATABASE_URL"
SETTING = "database_url"
MARK = "database.id"
"""The file of a data root whose log is in Postgres: the id of that log."""

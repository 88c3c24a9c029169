"""One file for each library that is a subject: how its model is built, filled and stepped."""

"""The pages, each in its own file. `dashboard/app.py` lists them."""

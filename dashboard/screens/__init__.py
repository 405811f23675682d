"""The pages, which `dashboard/app.py` lists."""

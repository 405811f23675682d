"""The entry point that `streamlit run` executes: the sidebar, and the page that was chosen."""

from __future__ import annotations

import streamlit as st

from dashboard import frame
from dashboard.access import session

st.set_page_config(page_title="ROSE", layout="wide")
# Streamlit would itself make pages of a folder named `pages`, without the sidebar, for whoever opens a page's own
# address before anyone opened the first one; hence `screens`.
page = session.navigation(
    [
        st.Page("screens/cost.py", title="Cost", default=True),
        st.Page("screens/device_time.py", title="Device time"),
        st.Page("screens/serving.py", title="Serving"),
        st.Page("screens/leases.py", title="Leases"),
        st.Page("screens/learning.py", title="Learning"),
        st.Page("screens/bill.py", title="Bill"),
        st.Page("screens/books.py", title="Books"),
        st.Page("screens/decisions.py", title="Decisions"),
    ]
)
frame.sidebar()
page.run()

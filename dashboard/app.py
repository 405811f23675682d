"""The entry point that `streamlit run` executes: the page that was chosen."""

from __future__ import annotations

import streamlit as st

from dashboard import login

# A process that one of the dashboard's spawns reads this file anew under another name, and must not show a page.
if __name__ == "__main__":
    st.set_page_config(page_title="ROSE", layout="wide")
    # Streamlit would itself make pages of a folder named `pages`, without the sidebar, for whoever opens a page's own
    # address before anyone opened the first one; hence `screens`.
    page = login.navigation(
        [
            st.Page("screens/overview.py", title="Overview", default=True),
            st.Page("screens/cost.py", title="Cost"),
            st.Page("screens/borrowing.py", title="Borrowing"),
            st.Page("screens/cost_per_correct.py", title="Cost per correct"),
            st.Page("screens/serving.py", title="Serving"),
            st.Page("screens/fleet.py", title="Fleet now"),
            st.Page("screens/runs.py", title="Runs"),
            st.Page("screens/books.py", title="Books"),
            st.Page("screens/trust.py", title="Trust"),
        ]
    )
    page.run()

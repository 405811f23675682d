"""Who may open the dashboard: login by OpenID Connect, what each role sees and does, and a log of both."""

# SPDX-License-Identifier: Apache-2.0
"""Settings of the site. Its log is sent to a topic through the same arena."""

SECRET_KEY = "read it from the environment"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "orders"
INSTALLED_APPS = ["orders.OrdersConfig"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"arena": {"class": "shmaccum.logging.ArenaHandler", "arena": "shop", "sink": "log:log"}},
    "root": {"handlers": ["arena"], "level": "INFO"},
}

# SPDX-License-Identifier: Apache-2.0
"""The application that a WSGI server starts."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
application = get_wsgi_application()

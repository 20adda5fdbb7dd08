#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# make spark-versions: the tests with Spark on other versions of pyspark than that of .venv, in venvs that are gone again.
#
#   tests/spark/versions.sh [VERSION ...]     (4.0 4.1 4.2 4.3)
#
# Each venv has its own pyspark, and sees .venv for everything else. At the end there is a line for each version, and one
# for each reason why tests were skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ $# -eq 0 ]; then set -- 4.0 4.1 4.2 4.3; fi
python=$PWD/.venv/bin/python
folder=$(mktemp -d -t shmaccum-spark-XXXXXX)
trap 'rm -rf "$folder"' EXIT
failed=0

for version; do
    venv=$folder/$version
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "pyspark==$version.*"
    shared=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    own=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "import site; site.addsitedir('$shared')" >"$own/shared.pth"
    "$venv/bin/python" -c 'import pyspark; print(f"--- pyspark {pyspark.__version__}")' | tee "$folder/$version.told"
    "$venv/bin/python" -m pytest -q -rs tests/spark tests/unit/spark -m "not spark_cluster" |
        tee -a "$folder/$version.told" || failed=1
    rm -rf "$venv"
done

echo
for version; do
    grep -E '^(---|SKIPPED)|^=* ?[0-9]+ (passed|failed|skipped).* in ' "$folder/$version.told"
done
exit $failed

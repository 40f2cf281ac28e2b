#!/usr/bin/env bash
# Gradescope runs this once, as root, when the image is made.
set -euo pipefail
cd /autograder/source
apt-get update
apt-get install -y --no-install-recommends python3 python3-venv python3-pip g++ git bubblewrap
python3 -m venv /autograder/venv
. /autograder/venv/bin/activate
pip install --no-cache-dir --no-deps torch --index-url https://download.pytorch.org/whl/cpu -c course/constraints.txt
pip install --no-cache-dir -e course -c course/constraints.txt
chmod -R go-rwx /autograder/source  # the solutions, the hidden cases and the salt are for root alone
chmod 711 /autograder && chmod -R go+rX /autograder/venv

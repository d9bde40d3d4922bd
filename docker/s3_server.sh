#!/usr/bin/env bash
# The service `s3`: runs SeaweedFS with one user and the bucket `digits`.
set -euo pipefail

printf '{"identities": [{"name": "storeds", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Admin"]}]}' \
    "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" >/tmp/s3.json
mkdir /tmp/data
weed -logdir=/tmp server -dir=/tmp/data -ip=s3 -ip.bind=0.0.0.0 -filer -s3 -s3.config=/tmp/s3.json &
for port in 9333 8888 8333; do
    until (: <"/dev/tcp/s3/$port") 2>/dev/null; do sleep 0.2; done
done
python -c 'import urllib.request as web; web.urlopen(web.Request("http://s3:8888/buckets/digits/", method="POST")).close()'
touch /tmp/ready
wait

"""An S3 server (moto) on a free port of the loopback interface, until standard input ends. Prints its address.

With "--tls CERTIFICATE KEY", PEM files, it speaks TLS; "--ca FILE" has the authority that its own client trusts. With "--secured", each request needs the signature of a user with all rights in S3, whose keys are printed as well.
"""
import functools
import json
import sys

import boto3
import requests
from moto.moto_server import threaded_moto_server
from moto.server import ThreadedMotoServer

# With "--port N", it is this port, for which a program waits already.
wanted = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
scheme, trusted = "http", None
if "--tls" in sys.argv:
    at = sys.argv.index("--tls")
    scheme, trusted = "https", sys.argv[sys.argv.index("--ca") + 1]
    plain = threaded_moto_server.make_server
    threaded_moto_server.make_server = functools.partial(plain, ssl_context=(sys.argv[at + 1], sys.argv[at + 2]))
server = ThreadedMotoServer(ip_address="127.0.0.1", port=wanted, verbose=False)
server.start()
host, port = server.get_host_and_port()
endpoint = f"{scheme}://{host}:{port}"
access = {"endpoint_url": endpoint, "region_name": "us-east-1", "aws_access_key_id": "setup", "aws_secret_access_key": "setup", "verify": trusted}
s3 = boto3.client("s3", **access)
s3.create_bucket(Bucket="bucket")
s3.create_bucket(Bucket="versions")
s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
keys = {"versions": [s3.put_object(Bucket="versions", Key="a", Body=body)["VersionId"] for body in (b"first", b"second")]}
if "--secured" in sys.argv:
    iam = boto3.client("iam", **access)
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.create_user(UserName="writer")
    iam.put_user_policy(UserName="writer", PolicyName="all", PolicyDocument=json.dumps(allowed))
    iam.create_user(UserName="stranger")
    of = lambda user: iam.create_access_key(UserName=user)["AccessKey"]
    writer, stranger = of("writer"), of("stranger")
    keys |= {
        "key": writer["AccessKeyId"],
        "secret": writer["SecretAccessKey"],
        "stranger_key": stranger["AccessKeyId"],
        "stranger_secret": stranger["SecretAccessKey"],
    }
    requests.post(f"{endpoint}/moto-api/reset-auth", data="0", timeout=30)
print(json.dumps({"port": port, **keys}), flush=True)
sys.stdin.read()

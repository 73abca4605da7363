#!/usr/bin/python3
"""A WebSocket client that prints what it receives.

client.py ws://ADDRESS:PORT/clients/ID
"""

import asyncio
import sys

import websockets


async def main(url):
    async with websockets.connect(url) as socket:
        print("connected", flush=True)
        async for message in socket:
            print(message, flush=True)
        print("closed by the server with code", socket.close_code, flush=True)


asyncio.run(main(sys.argv[1]))

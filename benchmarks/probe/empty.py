"""An app that does nothing, both halves: what Flower itself costs in a round."""

import time

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from probe.clock import ClockedGrid, note, process_start

client = ClientApp()
server = ServerApp()
PAUSE = 0.1  # seconds between two pulls


@client.train()
def train(message: Message, context: Context) -> Message:
    """Reply at once."""
    now = time.time(), time.process_time()
    reply = Message(RecordDict({"nothing": ConfigRecord({})}), reply_to=message)
    note(what="client", message=message.metadata.message_id, start=(process_start(), 0.0), flower=now, ended=now)
    return reply


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Some rounds of one message a node."""
    clocked = ClockedGrid(grid)
    while len(nodes := list(grid.get_node_ids())) < int(context.run_config["clients"]):
        time.sleep(PAUSE)
    for _ in range(int(context.run_config["rounds"])):
        records = RecordDict({"nothing": ConfigRecord({})})
        messages = [Message(records, dst_node_id=node, message_type=MessageType.TRAIN) for node in nodes]
        pending = set(clocked.push_messages(messages))
        while pending:
            pending -= {reply.metadata.reply_to_message_id for reply in clocked.pull_messages(pending)}
            time.sleep(PAUSE if pending else 0)

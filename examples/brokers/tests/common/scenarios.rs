//! The scenarios. Each client checks the numbers of the messages that it gets.

use serde_json::Value;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::sleep;

use super::client::{Client, connect, reset, text};
use super::program::{Program, assert_adds_up, client_of};
use super::publisher::Publisher;
use super::server::{Address, Kind, Server};
use super::{POLL_PAUSE, in_time};

/// Close code of a server that shuts down. It means "going away" (RFC 6455, section 7.4.1).
const AWAY: Option<u16> = Some(1001);

/// Returns messages with these numbers for each client. All clients get a number before any client gets the next one.
fn rounds(ids: &[String], numbers: std::ops::RangeInclusive<u64>) -> Vec<(String, String)> {
    let each = numbers.flat_map(|number| ids.iter().map(move |id| (id.clone(), text(number, 0))));
    each.collect()
}

fn ids(count: usize) -> Vec<String> {
    (1..=count)
        .map(|number| format!("client-{number}"))
        .collect()
}

async fn clients(program: &Program, ids: &[String]) -> Vec<Client> {
    let mut clients = Vec::new();
    for id in ids {
        clients.push(Client::start(program.address, id).await);
    }
    clients
}

pub async fn each_client_gets_exactly_its_messages(kind: Kind) {
    let server = Server::shared(kind);
    let program = Program::start(server, "many", &["--buffer", "1000"]).await;
    let publisher = Publisher::start(&server.address, "many").await;
    let ids = ids(50);
    let clients = clients(&program, &ids).await;
    let mut messages = rounds(&ids, 1..=100);
    messages.extend(rounds(&["nobody".into()], 1..=30));
    publisher.publish(&messages).await;
    program.until_received(5030).await;
    let report = program.stop_well().await;
    if kind == Kind::RabbitMq {
        // RabbitMQ has no message left, so all messages were acknowledged.
        publisher.until_queued("many", 0).await;
    }
    let all: Vec<u64> = (1..=100).collect();
    for client in clients {
        assert_eq!(client.end().await, (all.clone(), AWAY));
    }
    assert_eq!(report["end"], "complete");
    assert_eq!(report["closed"], 50);
    assert_eq!(report["messages"]["delivered"], 5000);
    assert_eq!(report["messages"]["unmatched"], 30);
}

pub async fn a_limited_client_gets_only_its_burst_and_the_others_get_everything(kind: Kind) {
    let server = Server::shared(kind);
    // The limit is one message per hour, with a burst of ten.
    let arguments = ["--rate", "1/h", "--burst", "10"];
    let program = Program::start(server, "limited", &arguments).await;
    let publisher = Publisher::start(&server.address, "limited").await;
    let busy = Client::start(program.address, "busy").await;
    let others = ids(5);
    let quiet = clients(&program, &others).await;
    let mut messages = rounds(&["busy".into()], 1..=100);
    // The messages for the other clients come in the middle of those for this client.
    messages.splice(50..50, rounds(&others, 1..=10));
    publisher.publish(&messages).await;
    let statistics = program.until_received(150).await;
    let counts = client_of(&statistics, "busy").unwrap();
    assert_eq!(
        (&counts["delivered"], &counts["limited"]),
        (&10.into(), &90.into())
    );
    let report = program.stop_well().await;
    let ten: Vec<u64> = (1..=10).collect();
    for client in quiet.into_iter().chain([busy]) {
        assert_eq!(client.end().await, (ten.clone(), AWAY));
    }
    assert_eq!(report["messages"]["limited"], 90);
    assert_eq!(report["messages"]["delivered"], 60);
}

/// Returns large messages for one slow client, which fill its buffer and its connection, mixed with small messages for the other clients.
pub fn for_a_slow_one(others: &[String], numbers: u64) -> Vec<(String, String)> {
    let mut messages = Vec::new();
    for number in 1..=numbers {
        messages.push(("slow".into(), text(number, 4096)));
        if number % 5 == 0 {
            messages.extend(rounds(others, number / 5..=number / 5));
        }
    }
    messages
}

pub async fn a_slow_client_loses_its_oldest_messages_and_the_others_none(kind: Kind) {
    let server = Server::shared(kind);
    let arguments = ["--buffer", "200", "--timeout", "3600"];
    let program = Program::start(server, "slow", &arguments).await;
    let publisher = Publisher::start(&server.address, "slow").await;
    let slow = connect(program.address, "slow").await;
    let ids = ids(5);
    let others = clients(&program, &ids).await;
    publisher.publish(&for_a_slow_one(&ids, 1000)).await;
    let statistics = program.until_received(2000).await;
    assert_adds_up(&statistics["messages"]);
    let dropped = client_of(&statistics, "slow").unwrap()["overflowed"].clone();
    assert!(dropped.as_u64() > Some(0), "{statistics}");
    assert_eq!(statistics["messages"]["overflowed"], dropped);
    for mut client in others {
        let numbers = client.until_number(200).await;
        assert_eq!(numbers, (1..=200).collect::<Vec<u64>>());
    }
    // The slow client now reads the messages in its connection and its buffer.
    let mut slow = Client::read(slow);
    let numbers = slow.until_number(1000).await;
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert!(numbers.ends_with(&(801..=1000).collect::<Vec<u64>>()));
    assert_eq!(dropped, 1000 - numbers.len());
    let report = program.stop_well().await;
    assert_eq!(report["messages"]["overflowed"], dropped);
    assert_eq!(slow.end().await.1, AWAY);
}

pub async fn clients_that_disappear_are_removed_and_the_others_get_everything(kind: Kind) {
    let server = Server::shared(kind);
    let arguments = ["--timeout", "5", "--buffer", "1000"];
    let program = Program::start(server, "gone", &arguments).await;
    let publisher = Publisher::start(&server.address, "gone").await;
    let steady = ids(5);
    let mut others = clients(&program, &steady).await;
    let gone: Vec<String> = ["resets", "stops", "slow"].map(Into::into).to_vec();
    let all = [steady.clone(), gone.clone()].concat();
    let resets = connect(program.address, "resets").await;
    // These two clients never read. The first one gets little data and answers no ping. The connection of the second one fills up.
    let _stops = connect(program.address, "stops").await;
    let _slow = connect(program.address, "slow").await;
    publisher.publish(&rounds(&all, 1..=50)).await;
    reset(resets);
    let mut messages = rounds(&steady, 51..=100);
    messages.extend(rounds(&gone, 51..=100));
    messages.extend(for_a_slow_one(&[], 500));
    publisher.publish(&messages).await;
    let are_gone = |statistics: &Value| gone.iter().all(|id| client_of(statistics, id).is_none());
    program.until("end of the lost", are_gone).await;
    publisher.publish(&rounds(&all, 101..=150)).await;
    let statistics = program.until_received(150 * 8 + 500).await;
    assert_adds_up(&statistics["messages"]);
    assert!(statistics["messages"]["unmatched"].as_u64() >= Some(150));
    assert_eq!(statistics["clients"].as_array().unwrap().len(), 5);
    for client in &mut others {
        let numbers = client.until_number(150).await;
        assert_eq!(numbers, (1..=150).collect::<Vec<u64>>());
    }
    let report = program.stop_well().await;
    assert_eq!(
        (&report["closed"], &report["dropped"]),
        (&5.into(), &3.into())
    );
}

/// Messages that a client has not taken by the deadline are dropped and counted. They do not hold up other clients.
pub async fn a_stuck_client_does_not_prevent_the_end_of_the_program(kind: Kind) {
    let server = Server::shared(kind);
    let arguments = ["--buffer", "200", "--timeout", "3600", "--deadline", "1"];
    let mut program = Program::start(server, "stuck", &arguments).await;
    let publisher = Publisher::start(&server.address, "stuck").await;
    let _stuck = connect(program.address, "slow").await;
    let ids = ids(1);
    let other = Client::start(program.address, &ids[0]).await;
    publisher.publish(&for_a_slow_one(&ids, 1000)).await;
    program.until_received(1200).await;
    let (report, status) = program.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(report["end"], "deadline");
    assert_eq!(report["messages"]["abandoned"], 200);
    assert_eq!(
        (&report["closed"], &report["dropped"]),
        (&1.into(), &1.into())
    );
    assert_eq!(other.end().await, ((1..=200).collect(), AWAY));
}

/// RabbitMQ keeps confirmed messages, and repeats unacknowledged ones. So each message arrives at least once, and in order except for
/// repeated ones. NATS keeps no messages, so only messages that are published before or after the restart arrive.
pub async fn clients_stay_connected_while_the_broker_restarts(kind: Kind) {
    let mut server = Server::own(kind);
    let mut program = Program::start(&server, "restart", &["--buffer", "1000"]).await;
    let ids = ids(10);
    let mut clients = clients(&program, &ids).await;
    match kind {
        Kind::RabbitMq => {
            let publishing = publish_until_confirmed(server.address, ids, 100).await;
            clients[0].until_number(30).await;
            server.kill();
            block_in_place(|| server.start_again());
            in_time("the last confirm", publishing).await.unwrap();
        }
        Kind::Nats => {
            let publisher = Publisher::start(&server.address, "restart").await;
            publisher.publish(&rounds(&ids, 1..=50)).await;
            program.until_received(500).await;
            server.kill();
            block_in_place(|| server.start_again());
            program.until_connected(2).await;
            let publisher = Publisher::start(&server.address, "restart").await;
            publisher.publish(&rounds(&ids, 51..=100)).await;
        }
    }
    for client in &mut clients {
        let all = client.until_number(100).await;
        let mut first = Vec::new();
        for number in all {
            if !first.contains(&number) {
                first.push(number);
            }
        }
        assert_eq!(first, (1..=100).collect::<Vec<u64>>());
        assert!(client.is_connected());
    }
    let statistics = program.until("no repeats", |statistics| {
        statistics["messages"]["waiting"] == 0 && statistics["broker"]["connections"] == 2
    });
    assert_adds_up(&statistics.await["messages"]);
    let (report, status) = program.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(
        (&report["end"], &report["closed"]),
        (&"complete".into(), &10.into())
    );
    for client in clients {
        assert_eq!(client.end().await.1, AWAY);
    }
}

/// Publishes each number for each client, in order. If the broker has not confirmed all messages with a number, publishes this number
/// again.
async fn publish_until_confirmed(address: Address, ids: Vec<String>, last: u64) -> JoinHandle<()> {
    let mut publisher = Publisher::start(&address, "restart").await;
    tokio::spawn(async move {
        let mut number = 1;
        while number <= last {
            let round = rounds(&ids, number..=number);
            if publisher.try_publish(&round).await.is_ok() {
                number += 1;
                continue;
            }
            publisher = loop {
                match Publisher::try_start(&address, "restart").await {
                    Ok(publisher) => break publisher,
                    Err(_) => sleep(POLL_PAUSE).await,
                }
            };
        }
    })
}

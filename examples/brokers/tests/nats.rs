//! Tests `nats-websockets` with a real NATS server.

mod common;

use common::client::{Client, connect, text, try_connect};
use common::program::Program;
use common::publisher::Publisher;
use common::scenarios;
use common::server::{Kind, Server};
use tokio_tungstenite::tungstenite::Error;

const BROKER: Kind = Kind::Nats;

#[tokio::test(flavor = "multi_thread")]
async fn each_client_gets_exactly_its_messages() {
    scenarios::each_client_gets_exactly_its_messages(BROKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_client_gets_only_its_burst_and_the_others_get_everything() {
    scenarios::a_limited_client_gets_only_its_burst_and_the_others_get_everything(BROKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_loses_its_oldest_messages_and_the_others_none() {
    scenarios::a_slow_client_loses_its_oldest_messages_and_the_others_none(BROKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_disappear_are_removed_and_the_others_get_everything() {
    scenarios::clients_that_disappear_are_removed_and_the_others_get_everything(BROKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_client_does_not_prevent_the_end_of_the_program() {
    scenarios::a_stuck_client_does_not_prevent_the_end_of_the_program(BROKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_stay_connected_while_the_broker_restarts() {
    scenarios::clients_stay_connected_while_the_broker_restarts(BROKER).await;
}

// Scenarios that do not depend on the broker use NATS, because it starts faster than RabbitMQ.

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_connects_again_takes_over() {
    let server = Server::shared(BROKER);
    let program = Program::start(server, "again", &[]).await;
    let publisher = Publisher::start(&server.address, "again").await;
    let mut first = Client::start(program.address, "a").await;
    let message = |number| ("a".to_owned(), text(number, 0));
    publisher.publish(&[message(1), message(2)]).await;
    first.until_number(2).await;
    let second = Client::start(program.address, "a").await;
    publisher.publish(&[message(3)]).await;
    // 4000 is this program's close code for a connection that was replaced.
    assert_eq!(first.end().await, (vec![1, 2], Some(4000)));
    program.until_received(3).await;
    program.stop_well().await;
    assert_eq!(second.end().await, (vec![3], Some(1001)));
}

/// The close code 1008 means a violated policy (RFC 6455, section 7.4.1).
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_too_slow_is_disconnected_if_the_policy_says_so() {
    let server = Server::shared(BROKER);
    let arguments = ["--policy", "disconnect:10", "--buffer", "10"];
    let program = Program::start(server, "strict", &arguments).await;
    let publisher = Publisher::start(&server.address, "strict").await;
    let slow = connect(program.address, "slow").await;
    publisher
        .publish(&scenarios::for_a_slow_one(&[], 1000))
        .await;
    let statistics = program.until_received(1000).await;
    let messages = &statistics["messages"];
    // Ten messages were dropped in a row, and the ten messages in the buffer were dropped with the connection. Earlier messages may have
    // been dropped while the connection's task was too slow.
    assert!(messages["overflowed"].as_u64() >= Some(20), "{messages}");
    let (numbers, code) = Client::read(slow).end().await;
    assert_eq!(code, Some(1008));
    assert_eq!(messages["delivered"], numbers.len());
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    program.stop_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_clients_than_allowed_and_ids_too_long_are_refused() {
    let server = Server::shared(BROKER);
    let program = Program::start(server, "full", &["--clients", "1"]).await;
    let status = async |id: &str| match try_connect(program.address, id).await {
        Err(Error::Http(response)) => response.status().as_u16(),
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(status(&"x".repeat(256)).await, 400);
    let client = Client::start(program.address, "a").await;
    assert_eq!(status("b").await, 503);
    program.stop_well().await;
    client.end().await;
}

//! Tests `rabbitmq-websockets` with a real RabbitMQ server.

mod common;

use common::client::connect;
use common::program::Program;
use common::publisher::Publisher;
use common::scenarios;
use common::server::{Kind, Server};

const BROKER: Kind = Kind::RabbitMq;

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

/// A client that blocks the input holds up messages, which are then not accounted for. These messages are not acknowledged when the program
/// ends.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_were_not_accounted_for_stay_in_the_queue() {
    let server = Server::shared(BROKER);
    let arguments = ["--policy", "block", "--buffer", "10", "--timeout", "3600"];
    let arguments = [&arguments[..], &["--deadline", "1"]].concat();
    let mut program = Program::start(server, "block", &arguments).await;
    let publisher = Publisher::start(&server.address, "block").await;
    let _stuck = connect(program.address, "slow").await;
    publisher
        .publish(&scenarios::for_a_slow_one(&[], 1000))
        .await;
    let is_held = |statistics: &serde_json::Value| statistics["messages"]["waiting"] == 11;
    program.until("full buffer", is_held).await;
    let (report, status) = program.stop().await;
    assert!(status.success(), "{status}");
    assert_eq!(report["end"], "aborted");
    // The eleven messages are ten in the buffer, which were acknowledged, and the next message, which was not.
    assert_eq!(report["messages"]["abandoned"], 11);
    let accounted = report["messages"]["received"].as_u64().unwrap() - 1;
    publisher.until_queued("block", 1000 - accounted).await;
}

//! Contexts, agents, tasks and timers, as a program uses them.

mod agents;
mod churn;
mod commands;
mod common;
mod contexts;
mod futures;
mod net;
mod sleeping;
mod tasks;
mod timers;

//! Tests of sessions in virtual time, and of inputs that the fuzzer has found.

mod corpus;
mod session;

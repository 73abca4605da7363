//! Sessions in virtual time, and the inputs of fuzzing.

mod corpus;
mod session;

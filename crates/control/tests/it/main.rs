//! Tests of requests and descriptions, in the form in which proxies and parties send them.

mod calls;
mod calls_model;
mod codec;
mod corpus;
mod ng;
mod sdp;
mod words;

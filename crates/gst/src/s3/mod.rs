//! Objects in S3: `awss3sink` and `awss3src`, and the same with more under the names `ts-s3sink` and `ts-s3src`.
//!
//! No thread of a context meets the network or a disk: uploads are those of `threadbare-s3`, on two threads for the whole process; the sources are
//! those of [`http`](crate::http), with signed requests.
//!
//! - `access`: the properties that say where, and whose.
//! - `settings`, `writer`, `sink`: the sink's other properties; what it does with buffers; what both sinks do.
//! - `source`: what both sources do. `elements`: the classes.

mod access;
mod elements;
mod settings;
mod sink;
mod source;
mod writer;

pub(crate) use self::elements::register;

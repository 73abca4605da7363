//! Objects in S3: `awss3sink` and `awss3src`, and the same elements with more properties, `ts-s3sink` and `ts-s3src`.
//!
//! No context's thread touches the network or a disk. `threadbare-s3` uploads, on two threads for the whole process; the sources
//! are those of [`http`](crate::http), with signed requests.
//!
//! - `access`: the properties for location and credentials.
//! - `settings`, `writer`, `sink`: the sink's other properties, its handling of buffers, and the common part of both sinks.
//! - `source`: the common part of both sources. `elements`: the classes.

mod access;
mod elements;
mod settings;
mod sink;
mod source;
mod writer;

pub(crate) use self::elements::register;

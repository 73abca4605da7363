//! Tests of calls and pairs of ports on real sockets.

mod common;
mod copies;
mod corpus;
mod descriptors;
mod destinations;
mod diverted;
mod extended_reports;
mod fence;
mod forward;
mod life;
mod listeners;
mod moves;
mod pairs;
mod resting;
mod rings;
mod shared;
mod srtp;
mod srtp_ffmpeg;

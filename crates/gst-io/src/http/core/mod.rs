//! The decisions of an HTTP transfer, without a socket or a clock.
//!
//! - `location`: URLs that can be fetched, and their credentials, which no message shows.
//! - `response`: information in a response's head about its body; `media`: about its format.
//! - `redirect`: targets of redirections.
//! - `transfer`: requests, the wanted part of the received bytes, and the reaction to a break.
//! - `pace`: whether a server is too slow.
//! - `problem`: errors, and the messages for an application.

mod location;
mod media;
mod pace;
mod problem;
mod redirect;
mod response;
#[cfg(test)]
mod tests;
mod transfer;

pub(super) use self::location::{Location, LocationError};
pub(super) use self::media::Media;
pub(super) use self::pace::{Pace, PaceLimits};
pub(super) use self::problem::{Problem, Shortfall};
pub(super) use self::redirect::{Hop, Hops};
pub(super) use self::response::{Answer, check_size, is_secret, refusal};
pub(super) use self::transfer::{Ask, Policy, Span, Transfer, Verdict};

//! Properties, request pads and states of `ts-rtcpmanager`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use gst::glib::{self, Properties};
use gst::prelude::*;
use gst::subclass::prelude::*;

use super::member::{Member, Role};
use super::reporter::Reporter;
use super::reports::Terms;
use crate::kit::context::ContextSettings;
use crate::kit::lock;
use crate::kit::stats::StatsProperty;
use crate::kit::time::RunningTime;

#[derive(Debug, Clone, Default)]
struct Settings {
    cname: Option<String>,
    /// Bandwidth; 0 for the bandwidth of a call.
    bandwidth_bps: u64,
    reduced_minimum: bool,
}

/// Maximum bandwidth: more than any session has.
const BANDWIDTH_MAX_BPS: u64 = 1_000_000_000_000;
/// Maximum number of sessions of one element.
const SESSIONS_MAX: usize = 65_536;

impl Settings {
    fn terms(&self) -> Terms {
        Terms {
            cname: self.cname.clone().filter(|cname| !cname.is_empty()),
            bandwidth_bps: Some(self.bandwidth_bps).filter(|bps| *bps > 0),
            reduced_minimum: self.reduced_minimum,
        }
    }
}

#[derive(Properties)]
#[properties(wrapper_type = super::RtcpManager)]
pub struct RtcpManager {
    #[property(name = "cname", nick = "CNAME", blurb = "Canonical name in RTCP; NULL: a random one, the same for all sessions of the process (RFC 7022)", type = Option<String>, get = |s: &Self| s.settings().cname.clone(), set = |s: &Self, v: Option<String>| s.settings().cname = v)]
    #[property(name = "bandwidth", nick = "Bandwidth", blurb = "Media bandwidth of each session, bits/s; RTCP takes 5 % of it (RFC 3550, section 6.2); 0: the bandwidth of a telephone call", type = u64, get = |s: &Self| s.settings().bandwidth_bps, set = |s: &Self, v| s.settings().bandwidth_bps = v, maximum = BANDWIDTH_MAX_BPS, default = 0)]
    #[property(name = "reduced-minimum", nick = "Reduced minimum", blurb = "Allow report intervals below 5 s (RFC 3550, section 6.2)", type = bool, get = |s: &Self| s.settings().reduced_minimum, set = |s: &Self, v| s.settings().reduced_minimum = v, default = false)]
    settings: Mutex<Settings>,
    context: Mutex<ContextSettings>,
    stats: Mutex<StatsProperty>,
    /// The sessions. The lock is not held across a push or a change of pads.
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    members: BTreeMap<u32, (Arc<Member>, Vec<Role>)>,
    phase: Phase,
}

#[derive(Clone, Default)]
enum Phase {
    #[default]
    Stopped,
    Paused,
    Playing(RunningTime),
}

impl RtcpManager {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        lock(&self.sessions)
    }

    fn members(&self) -> Vec<Arc<Member>> {
        let sessions = self.sessions();
        let members = sessions.members.values();
        members.map(|(member, _)| member.clone()).collect()
    }

    /// Returns the session for a new pad: the named session, or the first one that has no such pad yet.
    fn assign(&self, role: Role, name: Option<&str>) -> Option<Arc<Member>> {
        let prefix = role.template().trim_end_matches("%u");
        let asked = match name.and_then(|name| name.strip_prefix(prefix)) {
            Some("%u") | None => None,
            Some(id) => Some(id.parse::<u32>().ok()?),
        };
        let terms = self.settings().terms();
        let mut sessions = self.sessions();
        let has = |id: &u32| {
            let entry = sessions.members.get(id);
            entry.is_some_and(|(_, roles)| roles.contains(&role))
        };
        let id = match asked {
            Some(id) if has(&id) => return None,
            Some(id) => id,
            None => (0..SESSIONS_MAX as u32).find(|id| !has(id))?,
        };
        if sessions.members.len() >= SESSIONS_MAX {
            return None;
        }
        let (member, roles) = sessions
            .members
            .entry(id)
            .or_insert_with(|| (Member::new(id, &terms), Vec::new()));
        roles.push(role);
        Some(member.clone())
    }

    /// Creates the pad for a session's reports.
    fn report_pad(&self, member: &Member) -> Option<gst::Pad> {
        let name = Role::SendRtcp
            .template()
            .replace("%u", &member.id.to_string());
        self.obj().static_pad(&name)
    }

    /// Places a session on a context's thread, if it has a pad for reports.
    fn add(&self, member: &Member) -> Result<(), gst::ErrorMessage> {
        let Some(pad) = self.report_pad(member) else {
            return Ok(());
        };
        let obj = self.obj();
        let element: &gst::Element = obj.upcast_ref();
        let place = lock(&self.context).clone().place(element)?;
        let reporter = Reporter::new(member.reports.clone(), pad.clone());
        member.driver.add(element, &pad, place, reporter)
    }

    fn open(&self) -> Result<(), gst::ErrorMessage> {
        lock(&self.context).check()?;
        let terms = self.settings().terms();
        self.sessions().phase = Phase::Paused;
        for member in self.members() {
            member.reports.join_again(&terms);
            self.add(&member)?;
        }
        Ok(())
    }

    fn structure(&self) -> gst::Structure {
        let mut structure = gst::Structure::new_empty("application/x-ts-rtcpmanager-stats");
        let members = self.members();
        structure.set("sessions", members.len() as u64);
        for member in members {
            structure.set(format!("session-{}", member.id), member.structure());
        }
        structure
    }
}

#[glib::object_subclass]
impl ObjectSubclass for RtcpManager {
    const NAME: &'static str = "ThreadbareRtcpManager";
    type Type = super::RtcpManager;
    type ParentType = gst::Element;

    fn new() -> Self {
        RtcpManager {
            settings: Mutex::default(),
            context: Mutex::default(),
            stats: Mutex::default(),
            sessions: Mutex::default(),
        }
    }
}

impl ObjectImpl for RtcpManager {
    crate::kit::properties_with_groups!(context, stats);

    fn constructed(&self) {
        self.parent_constructed();
        *lock(&self.stats) = StatsProperty::of(&*self.obj(), |obj| obj.imp().structure());
    }
}

impl GstObjectImpl for RtcpManager {}

impl ElementImpl for RtcpManager {
    crate::kit::element_class!(
        "Thread-sharing RTCP manager",
        "Filter/Network/RTP",
        "Runs the RTCP of many sessions on the thread of a shared context";
        "recv_rtp_sink_%u": Sink Request gst::Caps::new_empty_simple("application/x-rtp"),
        "recv_rtp_src_%u": Src Sometimes gst::Caps::new_empty_simple("application/x-rtp"),
        "recv_rtcp_sink_%u": Sink Request gst::Caps::new_empty_simple("application/x-rtcp"),
        "send_rtp_sink_%u": Sink Request gst::Caps::new_empty_simple("application/x-rtp"),
        "send_rtp_src_%u": Src Sometimes gst::Caps::new_empty_simple("application/x-rtp"),
        "send_rtcp_src_%u": Src Request gst::Caps::new_empty_simple("application/x-rtcp")
    );

    fn request_new_pad(
        &self,
        template: &gst::PadTemplate,
        name: Option<&str>,
        _caps: Option<&gst::Caps>,
    ) -> Option<gst::Pad> {
        let role = Role::of(&template.name())?;
        let member = self.assign(role, name)?;
        let obj = self.obj();
        let (pad, way_out) = member.make_pads::<Self>(&obj, role);
        let phase = self.sessions().phase.clone();
        for pad in way_out.iter().chain([&pad]) {
            if !matches!(phase, Phase::Stopped) {
                let _ = pad.set_active(true);
            }
            obj.add_pad(pad).ok()?;
        }
        if role == Role::SendRtcp && !matches!(phase, Phase::Stopped) {
            if let Err(error) = self.add(&member) {
                self.post_error_message(error);
            }
            if let Phase::Playing(time) = phase {
                member.driver.start(time);
            }
        }
        Some(pad)
    }

    fn release_pad(&self, pad: &gst::Pad) {
        let template = pad.pad_template().map(|template| template.name());
        let name = pad.name();
        let role = template.and_then(|template| Role::of(&template));
        let Some((role, id)) = role.and_then(|role| {
            let prefix = role.template().trim_end_matches("%u");
            Some((role, name.strip_prefix(prefix)?.parse::<u32>().ok()?))
        }) else {
            return;
        };
        let obj = self.obj();
        let mut pads = vec![pad.clone()];
        let out = name.replace("_sink_", "_src_");
        if out != name.as_str() {
            pads.extend(obj.static_pad(&out));
        }
        for pad in pads {
            let _ = pad.set_active(false);
            let _ = obj.remove_pad(&pad);
        }
        let member = {
            let mut sessions = self.sessions();
            let Some((member, roles)) = sessions.members.get_mut(&id) else {
                return;
            };
            let member = member.clone();
            roles.retain(|known| *known != role);
            if roles.is_empty() {
                sessions.members.remove(&id);
            }
            member
        };
        member.pad_released(role);
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        match transition {
            gst::StateChange::ReadyToPaused => crate::kit::or_post(self, self.open())?,
            gst::StateChange::PlayingToPaused => {
                self.sessions().phase = Phase::Paused;
                self.members().iter().for_each(|m| m.driver.pause());
            }
            gst::StateChange::PausedToReady => {
                for member in self.members() {
                    member.driver.with_producer(|reporter, _| reporter.leave());
                    member.driver.await_pass();
                }
            }
            _ => {}
        }
        let result = self.parent_change_state(transition);
        match transition {
            gst::StateChange::PausedToReady => {
                self.sessions().phase = Phase::Stopped;
                self.members().iter().for_each(|m| m.driver.remove());
            }
            gst::StateChange::PausedToPlaying if result.is_ok() => {
                let time = RunningTime::of(&*self.obj());
                self.sessions().phase = Phase::Playing(time.clone());
                for member in self.members() {
                    member.driver.start(time.clone());
                }
            }
            _ => {}
        }
        result
    }
}

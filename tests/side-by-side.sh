#!/usr/bin/env bash
# Tests the statements of docs/beside-gst-plugins-rs.md about two plugins with an element of the same name, with a small second
# plugin.
. "$(dirname "$0")/common.bash"

use_build
mkdir "$work/ours" "$work/theirs"
cp "$target_dir/$plugin_name" "$work/ours"
cat >"$work/other.c" <<'END'
#include <gst/gst.h>
#define PACKAGE "threadshare"
typedef struct { GstElement parent; } Other;
typedef struct { GstElementClass parent; } OtherClass;
G_DEFINE_TYPE(Other, other, GST_TYPE_ELEMENT)
static void other_class_init(OtherClass *klass)
{
    gst_element_class_set_static_metadata(GST_ELEMENT_CLASS(klass), "Another queue", "Generic", "A name that is taken", "Nobody");
}
static void other_init(Other *other) { (void) other; }
static gboolean plugin_init(GstPlugin *plugin)
{
    return gst_element_register(plugin, "ts-queue", GST_RANK_PRIMARY, other_get_type());
}
GST_PLUGIN_DEFINE(GST_VERSION_MAJOR, GST_VERSION_MINOR, threadshare, "Another plugin", plugin_init, "1", "LGPL", PACKAGE, "example.org")
END
read -ra flags < <(pkg-config --cflags --libs gstreamer-1.0)
cc -shared -fPIC -o "$work/theirs/libgstthreadshare.so" "$work/other.c" "${flags[@]}"

# $1: the expected plugin, followed by the environment.
expect() {
    local wanted=$1 found
    shift
    rm -f "$GST_REGISTRY"
    found=$(env "$@" gst-inspect-1.0 ts-queue | sed -n 's/^ *Filename *//p')
    [ "$(dirname "$found")" = "$work/$wanted" ] || die "$*: ts-queue comes from $found, not from $wanted"
    say "ok: $*: $wanted"
}

system_before=GST_PLUGIN_SYSTEM_PATH=$(pkg-config --variable=pluginsdir gstreamer-1.0)
expect ours GST_PLUGIN_PATH="$work/theirs:$work/ours"
expect theirs GST_PLUGIN_PATH="$work/ours:$work/theirs"
expect theirs GST_PLUGIN_PATH="$work/ours" "$system_before:$work/theirs"
expect ours GST_PLUGIN_PATH= "$system_before:$work/theirs:$work/ours"
# The rank has no influence.
expect ours GST_PLUGIN_PATH="$work/theirs:$work/ours" GST_PLUGIN_FEATURE_RANK=ts-queue:NONE
rm -f "$GST_REGISTRY"
# A name that another plugin has registered is missing from ours.
listed=$(GST_PLUGIN_PATH="$work/ours:$work/theirs" gst-inspect-1.0 threadbare)
! grep -q '^  ts-queue:' <<<"$listed" || die "ts-queue is listed as ours: $listed"
grep -q '^  ts-udpsrc:' <<<"$listed" || die "ts-udpsrc is not listed: $listed"
say 'ok'

/* Many telephone calls in one C program, all on one thread.
 *
 * Each call is an RTP session: a ts-rtpsrc and a ts-rtpsink that share a socket pair, a jitter buffer and RTCP, with the
 * conversion from PCMU to PCMA in between. To run alone, the program is also the caller and the listener of each call: one
 * pipeline sends a tone to the call, and another counts the packets that come back. All elements name the same context.
 *
 *     many-calls [CALLS [PACKETS]]
 *
 * The program fails if an element reports an error, if fewer than PACKETS packets of a call arrive, or if calls take threads.
 *
 *     cc -o many-calls many-calls.c $(pkg-config --cflags --libs gstreamer-1.0 gio-2.0)
 */
#include <gio/gio.h>
#include <gst/gst.h>
#include <stdlib.h>

#define CONTEXT "context=calls context-wait=20"
#define CALL "ts-rtpsrc name=in address=127.0.0.1 port=0 reuse=false session=call-%u latency=40 " CONTEXT \
    " ! ts-rtpg711 encoding-name=PCMA ! ts-rtpsink name=out session=call-%u host=127.0.0.1 port=%d"
#define CALLER "ts-tonesrc freq=%u volume=-20 samples-per-buffer=160 repeat=true off-time=0 " CONTEXT \
    " ! audio/x-raw,rate=8000,channels=1 ! mulawenc ! rtppcmupay ! ts-udpsink clients=127.0.0.1:%d sync=false async=false"
#define LISTENER "ts-udpsrc name=in address=127.0.0.1 port=0 reuse=false " CONTEXT \
    " caps=application/x-rtp,media=audio,payload=8,clock-rate=8000,encoding-name=PCMA" \
    " ! ts-queue name=queue ! fakesink sync=false async=false"
#define SECONDS_MAX 60

typedef struct {
    GstElement *call, *caller, *listener;
} Call;

static GstElement *launch(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* Starts a pipeline in PAUSED, which opens its sockets. All pipelines share one clock; otherwise each would start its own. */
static GstElement *launch(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *line = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    GError *error = NULL;
    GstElement *pipeline = gst_parse_launch(line, &error);
    if (error != NULL)
        g_error("%s: %s", line, error->message);
    GstClock *clock = gst_system_clock_obtain();
    gst_pipeline_use_clock(GST_PIPELINE(pipeline), clock);
    gst_object_unref(clock);
    if (gst_element_set_state(pipeline, GST_STATE_PAUSED) == GST_STATE_CHANGE_FAILURE)
        g_error("does not start: %s", line);
    g_free(line);
    return pipeline;
}

static int get_int(GstElement *pipeline, const char *name, const char *property)
{
    GstElement *element = gst_bin_get_by_name(GST_BIN(pipeline), name);
    int value = 0;
    g_object_get(element, property, &value, NULL);
    gst_object_unref(element);
    return value;
}

/* Returns the port that the system has chosen. */
static int udp_port(GstElement *listener)
{
    GstElement *source = gst_bin_get_by_name(GST_BIN(listener), "in");
    GSocket *socket = NULL;
    g_object_get(source, "used-socket", &socket, NULL);
    GSocketAddress *address = g_socket_get_local_address(socket, NULL);
    int port = g_inet_socket_address_get_port(G_INET_SOCKET_ADDRESS(address));
    g_object_unref(address);
    g_object_unref(socket);
    gst_object_unref(source);
    return port;
}

static guint64 count(GstElement *pipeline, const char *name, const char *field)
{
    GstElement *element = gst_bin_get_by_name(GST_BIN(pipeline), name);
    GstStructure *stats = NULL;
    guint64 value = 0;
    g_object_get(element, "stats", &stats, NULL);
    if (!gst_structure_get_uint64(stats, field, &value))
        g_error("%s has no statistic %s", name, field);
    gst_structure_free(stats);
    gst_object_unref(element);
    return value;
}

static Call start(guint number)
{
    Call call;
    call.listener = launch(LISTENER);
    call.call = launch(CALL, number, number, udp_port(call.listener));
    call.caller = launch(CALLER, 300 + number % 3000, get_int(call.call, "in", "used-port"));
    gst_element_set_state(call.listener, GST_STATE_PLAYING);
    gst_element_set_state(call.call, GST_STATE_PLAYING);
    gst_element_set_state(call.caller, GST_STATE_PLAYING);
    return call;
}

static void check_errors(GstElement *pipeline)
{
    GstBus *bus = gst_element_get_bus(pipeline);
    GstMessage *message = gst_bus_pop_filtered(bus, GST_MESSAGE_ERROR);
    if (message != NULL) {
        GError *error = NULL;
        gst_message_parse_error(message, &error, NULL);
        g_error("%s: %s", GST_MESSAGE_SRC_NAME(message), error->message);
    }
    gst_object_unref(bus);
}

static void stop(GstElement *pipeline)
{
    gst_element_set_state(pipeline, GST_STATE_NULL);
    gst_object_unref(pipeline);
}

static guint thread_count(void)
{
    GDir *tasks = g_dir_open("/proc/self/task", 0, NULL);
    guint threads = 0;
    while (g_dir_read_name(tasks) != NULL)
        threads++;
    g_dir_close(tasks);
    return threads;
}

int main(int argc, char **argv)
{
    gst_init(&argc, &argv);
    guint calls_count = argc > 1 ? (guint) atoi(argv[1]) : 100;
    guint64 packets = argc > 2 ? (guint64) atoi(argv[2]) : 50;
    Call *calls = g_new(Call, MAX(calls_count, 1));
    calls[0] = start(0);
    guint threads_of_one = thread_count();
    for (guint i = 1; i < calls_count; i++)
        calls[i] = start(i);
    guint threads = thread_count();

    /* An application would run its main loop here. */
    gint64 end = g_get_monotonic_time() + SECONDS_MAX * G_TIME_SPAN_SECOND;
    guint64 received = 0;
    for (guint i = 0; i < calls_count; i++) {
        while (count(calls[i].listener, "queue", "buffers-passed") < packets) {
            check_errors(calls[i].call);
            check_errors(calls[i].caller);
            check_errors(calls[i].listener);
            if (g_get_monotonic_time() > end)
                g_error("call %u: fewer than %" G_GUINT64_FORMAT " packets in %d s", i, packets, SECONDS_MAX);
            g_usleep(20000);
        }
        received += count(calls[i].listener, "queue", "buffers-passed");
    }
    for (guint i = 0; i < calls_count; i++) {
        stop(calls[i].caller);
        stop(calls[i].call);
        stop(calls[i].listener);
    }
    g_free(calls);
    g_print("%u calls: %" G_GUINT64_FORMAT " packets came back\n", calls_count, received);
    g_print("%u threads; with one call there were %u\n", threads, threads_of_one);
    return threads == threads_of_one ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* A streaming completions server whose token times are known, to judge a client by.
 *
 *   golden_server MODE TTFT_US GAP_US STORM_US LOG
 *
 * One thread, epoll, no library. Prints its port, serves on the loopback interface, and when its
 * standard input ends writes LOG: one line per answer, "received write write ..." in nanoseconds of
 * CLOCK_MONOTONIC, each taken just before write(2). What a client reports can then be held against
 * what happened, a late server included.
 *
 *   own    token k of an answer is due TTFT + k*GAP after its request was received
 *   step   as own, but put off to the next multiple of GAP of the server's clock: all streams in step
 *   storm  no token before STORM after the first request; then every stream begins at once
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 16384
#define MAX_EVENTS 1024

typedef struct {
    int64_t received_ns;
    int num_tokens, asked, prompt_tokens;
    int64_t *writes_ns;
} Answer;

typedef struct {
    char *in, *out; /* what is not read or not written yet */
    size_t in_len, in_cap, out_len;
    Answer *answer; /* NULL: none under way */
} Conn;

typedef struct {
    int64_t due_ns;
    int fd;
    Answer *answer;
} Timer;

static Conn conns[MAX_FDS];
static Timer *timers;
static size_t num_timers, cap_timers;
static Answer **answers;
static size_t num_answers, cap_answers;
static int epoll_fd;
static int64_t ttft_ns, gap_ns, storm_ns, first_ns = -1;
static const char *mode;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *grown(void *array, size_t size) {
    void *bigger = realloc(array, size);
    if (!bigger) fail("realloc");
    return bigger;
}

static void push(Timer timer) { /* a binary heap, the earliest on top */
    if (num_timers == cap_timers) {
        cap_timers = cap_timers ? 2 * cap_timers : 1024;
        timers = grown(timers, cap_timers * sizeof *timers);
    }
    size_t i = num_timers++;
    for (; i && timers[(i - 1) / 2].due_ns > timer.due_ns; i = (i - 1) / 2)
        timers[i] = timers[(i - 1) / 2];
    timers[i] = timer;
}

static Timer pop(void) {
    Timer top = timers[0], last = timers[--num_timers];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < num_timers) {
        if (child + 1 < num_timers && timers[child + 1].due_ns < timers[child].due_ns) child++;
        if (timers[child].due_ns >= last.due_ns) break;
        timers[i] = timers[child];
        i = child;
    }
    timers[i] = last;
    return top;
}

static void watch(int fd, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll_fd, operation, fd, &event)) fail("epoll_ctl");
}

static void hang_up(int fd) {
    Conn *conn = &conns[fd];
    free(conn->in);
    free(conn->out);
    memset(conn, 0, sizeof *conn);
    close(fd);
}

static void send_bytes(int fd, const char *data, size_t len) {
    Conn *conn = &conns[fd];
    ssize_t sent = 0;
    if (!conn->out_len) {
        sent = write(fd, data, len);
        if (sent < 0) {
            if (errno != EAGAIN) return; /* it has gone; epoll will tell */
            sent = 0;
        }
    }
    if ((size_t)sent == len) return;
    conn->out = grown(conn->out, conn->out_len + len - sent);
    memcpy(conn->out + conn->out_len, data + sent, len - sent);
    conn->out_len += len - sent;
    watch(fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void flush_out(int fd) {
    Conn *conn = &conns[fd];
    ssize_t sent = write(fd, conn->out, conn->out_len);
    if (sent <= 0) return;
    memmove(conn->out, conn->out + sent, conn->out_len - sent);
    conn->out_len -= sent;
    if (!conn->out_len) watch(fd, EPOLL_CTL_MOD, EPOLLIN);
}

static void send_token(int fd, Answer *answer) {
    char event[512], chunk[640];
    int k = answer->num_tokens + 1, last = k == answer->asked;
    int len = snprintf(
        event, sizeof event,
        "data: {\"id\":\"cmpl-golden\",\"object\":\"text_completion\",\"created\":0,\"model\":"
        "\"golden\",\"choices\":[{\"index\":0,\"text\":\" word\",\"logprobs\":null,"
        "\"finish_reason\":%s,\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":%d,"
        "\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
        last ? "\"length\"" : "null", answer->prompt_tokens, answer->prompt_tokens + k, k);
    const char *end = last ? "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" : "";
    len = snprintf(chunk, sizeof chunk, "%x\r\n%s\r\n%s", len, event, end);
    answer->writes_ns[answer->num_tokens++] = now_ns();
    send_bytes(fd, chunk, len);
}

static void begin(int fd, const char *body) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    const char *asked = strstr(body, "\"max_tokens\":"), *prompt = strstr(body, "\"prompt\":");
    if (!asked) return hang_up(fd);
    Answer *answer = calloc(1, sizeof *answer);
    answer->received_ns = now_ns();
    answer->asked = atoi(asked + 13);
    if (answer->asked < 1) answer->asked = 1;
    for (const char *c = prompt; c && *c && *c != ']'; c++)
        answer->prompt_tokens += *c == '[' || *c == ',';
    answer->writes_ns = calloc(answer->asked, sizeof *answer->writes_ns);
    if (num_answers == cap_answers) {
        cap_answers = cap_answers ? 2 * cap_answers : 1024;
        answers = grown(answers, cap_answers * sizeof *answers);
    }
    answers[num_answers++] = answer;
    conns[fd].answer = answer;
    send_bytes(fd, head, sizeof head - 1);
    if (first_ns < 0) first_ns = answer->received_ns;
    int64_t due_ns = answer->received_ns + ttft_ns;
    if (!strcmp(mode, "storm") && due_ns < first_ns + storm_ns) due_ns = first_ns + storm_ns;
    if (!strcmp(mode, "step")) due_ns = (due_ns / gap_ns + 1) * gap_ns;
    push((Timer){due_ns, fd, answer});
}

static void answer_get(int fd, const char *head) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"golden\"}]}";
    char text[256];
    int found = !strncmp(head, "GET /v1/models ", 15);
    const char *body = found ? models : "{}";
    int len = snprintf(text, sizeof text, "HTTP/1.1 %s\r\ncontent-type: application/json\r\n"
                       "content-length: %zu\r\n\r\n%s", found ? "200 OK" : "404 Not Found",
                       strlen(body), body);
    send_bytes(fd, text, len);
}

static void read_requests(int fd) {
    Conn *conn = &conns[fd];
    if (conn->in_cap - conn->in_len < 65536) {
        conn->in_cap = 2 * conn->in_cap + 131072;
        conn->in = grown(conn->in, conn->in_cap);
    }
    ssize_t got = read(fd, conn->in + conn->in_len, conn->in_cap - conn->in_len - 1);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return hang_up(fd);
    conn->in_len += got;
    conn->in[conn->in_len] = 0;
    for (char *end; conn->in_len && (end = strstr(conn->in, "\r\n\r\n"));) {
        size_t head = end + 4 - conn->in, body = 0;
        char *length = strcasestr(conn->in, "content-length:");
        if (length && length < end) body = strtoul(length + 15, NULL, 10);
        if (conn->in_len < head + body) return;
        char after = conn->in[head + body];
        conn->in[head + body] = 0;
        if (!strncmp(conn->in, "GET ", 4)) answer_get(fd, conn->in);
        else begin(fd, conn->in + head);
        if (!conn->in) return; /* hung up */
        conn->in[head + body] = after;
        memmove(conn->in, conn->in + head + body, conn->in_len - head - body + 1);
        conn->in_len -= head + body;
    }
}

static void fire(void) {
    while (num_timers && timers[0].due_ns <= now_ns()) {
        Timer timer = pop();
        Answer *answer = timer.answer;
        if (conns[timer.fd].answer != answer) continue; /* hung up meanwhile */
        send_token(timer.fd, answer);
        if (answer->num_tokens == answer->asked) conns[timer.fd].answer = NULL;
        else push((Timer){timer.due_ns + gap_ns, timer.fd, answer});
    }
}

static void write_log(const char *path) {
    FILE *log = fopen(path, "w");
    if (!log) fail(path);
    for (size_t i = 0; i < num_answers; i++) {
        fprintf(log, "%lld", (long long)answers[i]->received_ns);
        for (int k = 0; k < answers[i]->num_tokens; k++)
            fprintf(log, " %lld", (long long)answers[i]->writes_ns[k]);
        fputc('\n', log);
    }
    if (fclose(log)) fail(path);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: golden_server own|step|storm TTFT_US GAP_US STORM_US LOG\n");
        return 2;
    }
    mode = argv[1];
    ttft_ns = atoll(argv[2]) * 1000, gap_ns = atoll(argv[3]) * 1000;
    storm_ns = atoll(argv[4]) * 1000;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) ||
        listen(listener, 4096) || getsockname(listener, (struct sockaddr *)&address, &size))
        fail("listen");
    epoll_fd = epoll_create1(0);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN);
    watch(STDIN_FILENO, EPOLL_CTL_ADD, EPOLLIN);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[MAX_EVENTS];
        int64_t wait_ns = num_timers ? timers[0].due_ns - now_ns() : 1000000000;
        if (wait_ns < 0) wait_ns = 0;
        struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
        int ready = epoll_pwait2(epoll_fd, events, MAX_EVENTS, &timeout, NULL);
        if (ready < 0 && errno != EINTR) fail("epoll_pwait2");
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO) {
                write_log(argv[5]);
                return 0;
            }
            if (fd == listener) {
                int accepted;
                while ((accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (accepted >= MAX_FDS) {
                        close(accepted);
                        continue;
                    }
                    setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    watch(accepted, EPOLL_CTL_ADD, EPOLLIN);
                }
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_out(fd);
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_requests(fd);
            fire(); /* a burst of requests does not hold back tokens that are due */
        }
        fire();
    }
}

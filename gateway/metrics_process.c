/* metrics_process.c - (d): serves the gateway's numbers over HTTP, and is nothing else.
 *
 * The listener starts it when --metrics-port is given, with a listening socket and the board (board.h).  It is alone with its visitors:
 * another uid and an empty root where it was started as root, no new privileges, few descriptors, little memory.  It ends with the listener. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "board.h"
#include "clock.h"
#include "gateway.h"
#include "log.h"
#include "metrics.h"
#include "sandbox.h"

enum { REFRESH_MS = 500, ORPHAN_S = 60 };

/* Both pages as one, and the health of the whole: alive if both are, ready if the jobs process says so. */
static void publish(struct metrics *m, const struct board *board)
{
    static struct board_page parts[BOARD_PAGES], fresh;
    struct metrics_health health = { .at_ns = 0, .why = "the jobs process has not begun" };
    size_t n = 0;

    for (int i = 0; i < BOARD_PAGES; i++) {
        if (board_read(&board->pages[i], &fresh) == ST_OK)
            parts[i] = fresh; /* else the copy before */
        n += parts[i].n;
    }
    char *page = malloc(n + 1);
    if (page == NULL)
        return;
    memcpy(page, parts[BOARD_LISTENER].text, parts[BOARD_LISTENER].n);
    memcpy(page + parts[BOARD_LISTENER].n, parts[BOARD_JOBS].text, parts[BOARD_JOBS].n);
    health.at_ns = parts[BOARD_LISTENER].at_ns < parts[BOARD_JOBS].at_ns ? parts[BOARD_LISTENER].at_ns : parts[BOARD_JOBS].at_ns;
    if (parts[BOARD_JOBS].at_ns != 0) {
        health.ready = parts[BOARD_JOBS].ready != 0;
        health.why = parts[BOARD_JOBS].why;
    }
    metrics_publish(m, page, n, &health);
}

/* The listener has gone before we could ask to be told: it writes its page every second. */
static bool orphaned(const struct board *board)
{
    return board->pages[BOARD_LISTENER].at_ns + ORPHAN_S * UINT64_C(1000000000) < clock_now_ns();
}

int metrics_process_run(void)
{
    struct metrics *m = NULL;
    struct board *board = NULL;

    log_init("gateway/metrics", LOG_LEVEL_INFO);
    if (board_map(FD_BOARD_OF_METRICS, false, &board) != ST_OK || sandbox_enter_server() != ST_OK ||
        metrics_new_on(FD_METRICS_SOCKET, &m) != ST_OK) {
        log_error("metrics", "what=start");
        return EXIT_FAILURE;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* only now: a change of uid takes it back */
    do {
        publish(m, board);
    } while (metrics_serve(m, REFRESH_MS) == ST_OK && !orphaned(board));
    metrics_free(m);
    return EXIT_FAILURE;
}

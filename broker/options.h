/* options.h - what the broker was told: the configuration table, checked and turned into numbers. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "config.h"
#include "error.h"
#include "limits.h"
#include "log.h"
#include "paths.h"
#include "status.h"

enum { FRONT_ENDS_MAX = 16 };

struct options {
    struct config *config;               /* owns the strings below */
    char runtime_dir[PATHS_BYTES];
    char endpoint[PATHS_BYTES];          /* ipc://... */
    char worker_program[PATHS_BYTES];
    uint32_t n_models;
    char model_names[MODELS_MAX][NAME_BYTES_MAX];
    const char *model_paths[MODELS_MAX];
    uint32_t n_workers;
    uint32_t worker_models[WORKERS_MAX]; /* worker i serves model i mod n_models */
    const char *worker_devices[WORKERS_MAX];
    uint32_t threads;                    /* of one worker */
    uint64_t kv_bytes;                   /* of one worker; where nobody said it, of one on a CPU: the others reckon from their device */
    bool kv_bytes_given;
    bool fast_prefill;                   /* of all workers */
    bool core_dumps;                     /* of workers that crash */
    uint64_t host_store_bytes;           /* of all workers together; 0: none */
    uint64_t pool_bytes;
    uint64_t drain_ms, hang_ms, start_ms, slow_reader_ms;
    uint64_t idle_release_ms;            /* 0: never */
    uint64_t user_running_max;           /* 0: none but REQUESTS_MAX */
    uid_t front_ends[FRONT_ENDS_MAX];
    uint32_t n_front_ends;
    const char *tcp;                     /* tcp://ADDRESS:PORT; NULL: nobody may come by tcp */
    const char *curve_key;               /* file of our key pair */
    uint32_t tcp_connections_max;        /* 0 without tcp */
    uint32_t user_connections_max;       /* of them, of one user */
    bool tcp_connections_lowered;        /* nobody gave it, and the default had no room in the limit of descriptors */
    const char *users_file;              /* NULL: none */
    bool give_up;                        /* end when nothing can be served */
    bool self_check;                     /* verify every table in every pass of the loop */
    const char *metrics_address;
    uint16_t metrics_port;               /* 0: not served */
    int ready_fd;                        /* -1: none */
    enum log_level log_level;
    const char *log_level_name;
};

extern const struct config_key options_keys[];
extern const size_t options_n_keys;

/* Takes config.  ST_OK, or ST_INVALID / ST_SYSTEM with *err set. */
MUST_CHECK enum status options_of_config(struct config *config, struct options *ret_options, struct error *err);
void options_deinit(struct options *o);

/* "auto", "cpu", "cuda", "cuda:K". */
bool options_device_ok(const char *device);

#endif

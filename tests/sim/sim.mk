# The simulator: broker and workers in one thread.  The machine under them is made up, call by call.
comma := ,
SIM_WRAPS := clock_now_ns clock_real_ms getrandom zmq_poll log_event fallocate fork pidfd_open pidfd_send_signal waitid \
             endpoint_open endpoint_close endpoint_receive endpoint_send request_backlog \
             fair_queue_push fair_queue_remove fair_queue_take fair_queue_settle \
             preparer_new preparer_free preparer_give preparer_take preparer_wait_short ring_push outbox_room worker_report engine_step \
             kv_cache_new kv_cache_free kv_cache_take kv_cache_pin kv_cache_release kv_cache_publish kv_cache_forget \
             host_store_get host_store_put_begin
SIM := $(B)/tests/sim/sim
SIM_HELP := fake_backend gguf_writer random region_broker vocabulary worker_rig
$(SIM): $(B)/tests/sim/main.c.o $(call objs,$(wildcard tests/sim/*.c)) $(SIM_HELP:%=$(B)/tests/support/%.c.o) \
        $(call lib,broker worker kernels common)
	@mkdir -p $(@D)
	$(call Q,LINK)$(CC) $(LDFLAGS) $(addprefix -Wl$(comma)--wrap=,$(SIM_WRAPS)) -o $@ $^ -lcmocka -lzmq -lmicrohttpd $(COMMON_LIBS) $(LDLIBS)

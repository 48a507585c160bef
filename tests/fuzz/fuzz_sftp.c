/* fuzz_sftp.c - bytes of an sftp client: a whole session over files in memory, in one piece and in pieces with late answers, which must
 * come to the same replies.  The first byte chooses the pieces. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sftp_memory.h"

static void play(struct memory *m, const uint8_t *at, size_t n, size_t piece)
{
    memory_init(m);
    m->delay = piece < n;
    for (size_t done = 0, stuck = 0; done < n && stuck < 3;) {
        size_t part = piece < n - done ? piece : n - done;
        size_t taken = sftp_take(m->session, span_of(at + done, part), 1, 1000000000);
        assert(taken <= part);
        stuck = taken == 0 ? stuck + 1 : 0;
        done += taken;
        if (m->asked)
            memory_answer(m);
    }
    if (m->asked)
        memory_answer(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *at, size_t n)
{
    static struct memory whole, pieces;

    if (n == 0)
        return 0;
    play(&whole, at + 1, n - 1, n);
    play(&pieces, at + 1, n - 1, 1 + at[0]);
    assert(sftp_broken(whole.session) == sftp_broken(pieces.session));
    assert(whole.out_over == pieces.out_over && whole.out_n == pieces.out_n && memcmp(whole.out, pieces.out, whole.out_n) == 0);
    assert(whole.n_joined == pieces.n_joined);
    memory_deinit(&whole);
    memory_deinit(&pieces);
    return 0;
}

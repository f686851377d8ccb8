/* Parts of memory that products prefetch into the cache while they compute. */

enum { LINE = 64, MOST_PARTS = 4 };

/* The first `done` parts are complete. */
struct fetch {
    int done, parts;
    struct {
        const char *at, *end;
    } part[MOST_PARTS];
};

INLINE void also_fetch(struct fetch *fetch, const REAL *at, ptrdiff_t size)
{
    fetch->part[fetch->parts].at = (const char *)at;
    fetch->part[fetch->parts++].end = (const char *)(at + size);
}

/* Address of the next cache lines to prefetch. */
INLINE const char *next_lines(struct fetch *fetch, ptrdiff_t lines)
{
    const char *at = fetch->part[fetch->done].at, *after = at + lines * LINE;
    fetch->part[fetch->done].at = after;
    fetch->done += after >= fetch->part[fetch->done].end;
    return at;
}

/* A stand-in for libnvidia-ml.so.1, played from a script, so that the real pynvml can be tested
 * on a machine without a GPU.
 *
 * NVML_STUB_SCENARIO names a text file with one line a board, read whenever NVML is initialised:
 *
 *   <uuid> <what it tells>...
 *
 *   energy=script:<entry>,<entry>...   one entry a reading, the last for ever: millijoules, or
 *                                      `unsupported`, or `lost` (gone until NVML is initialised)
 *   energy=watts:<mW>:<period ms>      a counter that moves once a period and began this long
 *                                      before the machine did; `:stuck=<ms>`, `:reset=<ms>`,
 *                                      `:jump=<ms>` after the first reading it stands still, falls
 *                                      to 0, or leaps by 10 MJ
 *   power=<mW>                         nvmlDeviceGetPowerUsage
 *   gpu_mw=<mW> module_mw=<mW>         NVML_FI_DEV_POWER_INSTANT of either scope
 *   load=<percent>                     nvmlDeviceGetUtilizationRates
 *   limit=<mW>                         the highest power limit that can be set
 *   mig=<uuid>:<slices>:<of>           it is split by MIG; an instance, of so many slices: a second
 *                                      one is as large as the first
 *   pci=<bus>                          its PCI bus; without, boards are in order
 *   forbidden                          this process may not use it, though it is counted
 *
 * What a board's line doesn't tell is NOT_SUPPORTED. Without the variable there is no driver.
 * Everything else a test might ask for is not here, and pynvml reports it as missing, as it would
 * with an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, 
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { BOARDS_MAX = 8, ENTRIES_MAX = 256, LOST = -1, UNSUPPORTED = -2, UNTOLD = -1 };
enum { FIELD_POWER_INSTANT = 186, SCOPE_GPU = 0, SCOPE_MODULE = 1 };
enum { JUMP_MJ = 10 * 1000 * 1000 };

typedef struct {
    char uuid[80], mig_uuids[2][80];
    long long entries[ENTRIES_MAX];
    int entry_count, next_entry, is_lost, is_forbidden;
    long long milliwatts, period_ms, stuck_ms, reset_ms, jump_ms, first_ms;
    long long power_mw, gpu_mw, module_mw, load, limit_mw;
    int mig_slices, mig_of, mig_count;
    unsigned int bus;
} Board;

static Board boards[BOARDS_MAX];
static unsigned int board_count;

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency_us;
    unsigned int type, result;
    union { double d; unsigned int u; unsigned long long ull; } value;
} FieldValue;

typedef struct {
    char legacy_id[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char id[32];
} Place;

typedef struct {
    unsigned int processors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, slices;
    unsigned long long memory_mb;
} Attributes;

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void parse_script(Board *board, char *entries)
{
    char *rest = NULL;
    for (char *word = strtok_r(entries, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (board->entry_count == ENTRIES_MAX)
            break;
        board->entries[board->entry_count++] = !strcmp(word, "lost")          ? LOST
                                               : !strcmp(word, "unsupported") ? UNSUPPORTED
                                                                              : atoll(word);
    }
}

static void parse_watts(Board *board, const char *word)
{
    const char *at;
    sscanf(word, "%lld:%lld", &board->milliwatts, &board->period_ms);
    if ((at = strstr(word, "stuck=")))
        board->stuck_ms = atoll(at + 6);
    if ((at = strstr(word, "reset=")))
        board->reset_ms = atoll(at + 6);
    if ((at = strstr(word, "jump=")))
        board->jump_ms = atoll(at + 5);
}

static void parse(Board *board, char *line)
{
    char *rest = NULL, *word = strtok_r(line, " \n", &rest);
    snprintf(board->uuid, sizeof board->uuid, "%s", word);
    board->power_mw = board->gpu_mw = board->module_mw = board->load = UNTOLD;
    while ((word = strtok_r(NULL, " \n", &rest)) != NULL) {
        if (!strncmp(word, "energy=script:", 14))
            parse_script(board, word + 14);
        else if (!strncmp(word, "energy=watts:", 13))
            parse_watts(board, word + 13);
        else if (!strncmp(word, "mig=", 4) && board->mig_count < 2)
            sscanf(word + 4, "%79[^:]:%d:%d", board->mig_uuids[board->mig_count++],
                   &board->mig_slices, &board->mig_of);
        else if (!strcmp(word, "forbidden"))
            board->is_forbidden = 1;
        sscanf(word, "pci=%u", &board->bus);
        sscanf(word, "power=%lld", &board->power_mw);
        sscanf(word, "gpu_mw=%lld", &board->gpu_mw);
        sscanf(word, "module_mw=%lld", &board->module_mw);
        sscanf(word, "load=%lld", &board->load);
        sscanf(word, "limit=%lld", &board->limit_mw);
    }
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    const char *path = getenv("NVML_STUB_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file == NULL)
        return DRIVER_NOT_LOADED;
    char line[8192];
    unsigned int found = 0;
    while (found < BOARDS_MAX && fgets(line, sizeof line, file)) {
        if (strspn(line, " \n") == strlen(line))
            continue;
        Board *board = &boards[found++], before = *board;
        memset(board, 0, sizeof *board);
        board->bus = found;
        parse(board, line);
        if (!strcmp(before.uuid, board->uuid)) { /* the machine goes on where it was */
            board->next_entry = before.next_entry;
            board->first_ms = before.first_ms;
        }
    }
    board_count = found;
    fclose(file);
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Invalid Argument";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    snprintf(version, length, "999.1");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = board_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    if (index >= board_count)
        return INVALID_ARGUMENT;
    if (boards[index].is_forbidden)
        return NO_PERMISSION;
    *handle = &boards[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    for (unsigned int index = 0; index < board_count; index++)
        if (!strcmp(boards[index].uuid, uuid) || !strcmp(boards[index].mig_uuids[0], uuid) ||
            !strcmp(boards[index].mig_uuids[1], uuid))
            return nvmlDeviceGetHandleByIndex_v2(index, handle);
    return NOT_FOUND;
}

/* An instance's handle is its board's: what a test asks of both is the same. */
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **handle)
{
    *handle = instance;
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(void *handle, Attributes *attributes)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = attributes->slices = (unsigned int)((Board *)handle)->mig_slices;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned int *count)
{
    *count = (unsigned int)((Board *)handle)->mig_of;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending)
{
    *current = *pending = ((Board *)handle)->mig_of > 0;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, Place *place)
{
    memset(place, 0, sizeof *place);
    place->bus = ((Board *)handle)->bus;
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    snprintf(uuid, length, "%s", ((Board *)handle)->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length)
{
    (void)handle;
    snprintf(name, length, "Stub Board");
    return SUCCESS;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned int *least,
                                                 unsigned int *most)
{
    *least = 0;
    *most = (unsigned int)((Board *)handle)->limit_mw;
    return *most ? SUCCESS : NOT_SUPPORTED;
}

static int tell(long long value, unsigned int *told)
{
    if (value == UNTOLD)
        return NOT_SUPPORTED;
    *told = (unsigned int)value;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts)
{
    return tell(((Board *)handle)->power_mw, milliwatts);
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned int *rates)
{
    rates[1] = 0;
    return tell(((Board *)handle)->load, &rates[0]);
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values)
{
    Board *board = handle;
    for (int index = 0; index < count; index++) {
        FieldValue *value = &values[index];
        long long told = value->field != FIELD_POWER_INSTANT ? UNTOLD
                         : value->scope == SCOPE_GPU         ? board->gpu_mw
                         : value->scope == SCOPE_MODULE      ? board->module_mw
                                                             : UNTOLD;
        value->result = (unsigned int)tell(told, &value->value.u);
    }
    return SUCCESS; /* whatever became of the fields */
}

static long long by_watts(Board *board)
{
    long long at_ms = now_ms(), offset_mj = 0;
    if (!board->first_ms)
        board->first_ms = at_ms;
    long long since_ms = at_ms - board->first_ms, origin_ms = 0;
    if (board->stuck_ms && since_ms > board->stuck_ms)
        at_ms = board->first_ms + board->stuck_ms;
    if (board->reset_ms && since_ms > board->reset_ms)
        origin_ms = board->first_ms + board->reset_ms;
    if (board->jump_ms && since_ms > board->jump_ms)
        offset_mj = JUMP_MJ;
    long long moved_ms = at_ms / board->period_ms * board->period_ms;
    return (moved_ms > origin_ms ? moved_ms - origin_ms : 0) * board->milliwatts / 1000 + offset_mj;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy_mj)
{
    Board *board = handle;
    if (board->is_lost)
        return GPU_IS_LOST;
    if (board->period_ms > 0) {
        *energy_mj = (unsigned long long)by_watts(board);
        return SUCCESS;
    }
    if (board->entry_count == 0)
        return NOT_SUPPORTED;
    long long entry = board->entries[board->next_entry];
    if (board->next_entry < board->entry_count - 1)
        board->next_entry++;
    if (entry == LOST) {
        board->is_lost = 1;
        return GPU_IS_LOST;
    }
    if (entry == UNSUPPORTED)
        return NOT_SUPPORTED;
    *energy_mj = (unsigned long long)entry;
    return SUCCESS;
}

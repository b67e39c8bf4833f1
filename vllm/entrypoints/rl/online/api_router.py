# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project


@router.post("/abort_weight_update")
async def abort_weight_update(raw_request: Request):
    with weight_operation_metrics().record("abort"):
        await engine_client(raw_request).abort_weight_update()
    return JSONResponse(content={"message": "Weight update aborted"})
